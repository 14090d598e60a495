"""The commonest words of languages, written down for telling them apart in short texts. Ours; `reading.folded`."""

COMMON = {
    "en": (
        "the of and to a in is that it was for on are with as his they be at this have from or had by not but what "
        "all were when we there can an your which their said if do will each about how up out them then she many some "
        "so these would other into has more her two like him see time could no make than been now my who its over did "
        "down only way find use may long little very after words called just where most know get through back much "
        "before go good new write our me man too any day same right look think also around another came come work "
        "three word must because does part even place well such here take why help put different away again off went "
        "old number great tell men say small every found still between name should home big give air line set own "
        "under read last never us left end along while might next sound below saw something thought both few those "
        "always show large often together asked house world going want school important until form food keep children "
        "feet land side without boy once animal life enough took four head above kind began almost live page got "
        "earth need far hand high year mother light country father let night picture being study second soon story "
        "since white ever paper hard near sentence better best across during today however sure hello hi yes i'm "
        "don't it's i you he am english answer thanks thank please welcome sorry okay dear friend people water love "
        "happy everyone nothing anything everything hope"
    ),
    "es": (
        "el la de que y a en un ser se no haber por con su para como estar tener le lo todo pero más hacer o poder "
        "decir este ir otro ese si me ya ver porque dar cuando él muy sin vez mucho saber qué sobre mi alguno mismo "
        "yo también hasta año dos querer entre así primero desde grande eso ni nos llegar pasar tiempo ella sí día "
        "uno bien poco deber entonces poner cosa tanto hombre parecer nuestro tan donde ahora parte después vida "
        "quedar siempre creer hablar llevar dejar nada cada seguir menos nuevo encontrar los las del una es son está "
        "al era fue han hay puede esta están hola mundo gracias adiós buenos días buenas amigo cómo estás señor casa "
        "agua usted ustedes nosotros ellos unos unas sus les aquí algo español respuesta"
    ),
    "pt": (
        "o a de que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem à seu "
        "sua ou ser quando muito há nos já está eu também só pelo pela até isso ela entre era depois sem mesmo aos "
        "ter seus quem nas me esse eles estão você tinha foram essa num nem suas meu às minha têm numa pelos elas "
        "havia seja qual será nós tenho lhe deles essas esses pelas este fosse dele olá mundo obrigado obrigada sim "
        "bom dia tudo bem amigo senhor são pode fazer ainda então coisa vida tempo ano casa português resposta"
    ),
    "fr": (
        "le la les de des du un une et à est en que qui dans ce il elle ne pas plus pour sur avec se son sa ses au "
        "aux par je tu nous vous ils elles on mais ou où donc car ni comme tout tous toute toutes cette ces cet leur "
        "leurs mon ma mes ton ta tes notre votre nos vos être avoir fait faire peut sont été était ont a ai as avons "
        "avez très bien aussi même sans sous entre après avant alors ainsi quand si rien deux temps jour monde "
        "bonjour salut merci oui non monsieur madame ami c'est d'un d'une l'on qu'il qu'elle n'est j'ai s'il y "
        "français réponse"
    ),
    "de": (
        "der die das und ist in den von zu mit sich des auf für nicht ein eine als auch es an werden aus er hat dass "
        "sie nach wird bei einer um am sind noch wie einem über einen so zum war haben nur oder aber vor zur bis mehr "
        "durch man sein wurde ich wir ihr uns dich mich mir dir kann wenn diese dieser dieses keine kein unter wo was "
        "wer warum schon immer sehr gut heute hier da dann jetzt alle alles etwas nichts viel leben zeit jahr tag "
        "welt hallo danke bitte ja nein guten morgen abend herr frau freund haus wasser habe bin bist deutsch antwort"
    ),
    "it": (
        "il lo la i gli le di a da in con su per tra fra e è che non un uno una del della dei delle degli al alla ai "
        "alle nel nella nei nelle dal dalla sul sulla si mi ti ci vi ma o se come anche più molto tutto tutti questo "
        "questa questi queste quello quella sono sei siamo siete ho hai ha abbiamo avete hanno era stato stata essere "
        "avere fare può io tu lui lei noi voi loro suo sua mio mia tuo tua nostro quando dove perché chi cosa così "
        "già ancora sempre mai poi ora qui lì bene tempo anno giorno vita mondo ciao grazie sì no buongiorno signore "
        "amico casa acqua italiano risposta"
    ),
    "nl": (
        "de het een en van in is dat op te zijn met voor niet aan er om ook als bij maar of uit nog naar dan over "
        "door wordt werd deze dit die wat wie waar hoe hij zij ze wij we jij je u ik mijn jouw onze hun hem haar geen "
        "heeft had heb kan kunnen zou zullen moet worden meer veel al alle alles tot toen nu hier daar zo goed heel "
        "jaar dag tijd leven wereld hallo dank dankjewel ja nee goedemorgen meneer vriend huis nederlands antwoord"
    ),
    "sv": (
        "och i att det som en på är av för med till den har de inte om ett han men var jag sig från vi så kan när man "
        "hade där här hon ska skulle eller vid också efter upp bara alla mycket nu då vad varit blev bli blir mot "
        "över under mellan något detta denna dessa sina sin sitt hans hennes din dig mig oss er ni hej tack ja nej "
        "världen tid år dag liv svenska"
    ),
    "da": (
        "og i at det er en til på som med af for den ikke de der var han har jeg vi et om men sig kan fra så hun skal "
        "vil eller også efter op når man hvad hvor her nu da blev blive bliver mod over under mellem noget dette "
        "denne disse sine sin sit hans hendes din dig mig os jer hej tak ja nej verden tid år dag liv dansk"
    ),
    "no": (
        "og i det er en til på som med av for den ikke de der var han har jeg vi et om men seg kan fra så hun skal "
        "vil eller også etter opp når man hva hvor her nå da ble bli blir mot over under mellom noe dette denne disse "
        "sine sin sitt hans hennes din deg meg oss dere hei takk ja nei verden tid år dag liv norsk"
    ),
    "fi": (
        "ja on ei se että hän oli ovat joka mutta kun niin myös kuin sen tai mitä minä sinä me te he tämä nämä ne nyt "
        "vain jos voi olla ollut olen olet olemme sekä jo vielä hyvin paljon kaikki mukaan kanssa ennen jälkeen siitä "
        "sitä siinä mikä kuka missä miksi miten hei moi kiitos kyllä päivää maailma aika vuosi päivä elämä suomi "
        "suomen suomeksi vastaus hyvää huomenta terve"
    ),
    "pl": (
        "i w na nie się z do to że jest o jak ale po co tak za od przez dla już czy ich tylko jego jej był była było "
        "być może są ten ta te tego tym tej także bardzo przy pod nad bez gdy kiedy gdzie kto jaki my wy on ona ono "
        "oni ja ty mnie ciebie nas was sobie wszystko wszystkie więcej rok dzień czas życie świat cześć dziękuję "
        "proszę dobry pan pani dom polski odpowiedź"
    ),
    "cs": (
        "a v na se je že to s z do o i jako za by ale si po jsou od byl byla bylo být ve které který která nebo tak "
        "co jak už jen při pro až než když kde kdo můj tvůj jeho její jejich tento tato toto také velmi vše všechno "
        "rok den čas život svět ahoj děkuji ano ne prosím dobrý pan paní dům česky"
    ),
    "ro": (
        "și în de la a cu pe nu este un o care că din mai pentru se să al ale lui ei lor sunt era fost fi are au am "
        "ai dar sau ca după când unde cum ce cine acest această acestea acela foarte tot toate toți noi voi eu tu el "
        "ea mie bine an zi timp viață lume salut mulțumesc da bună ziua casă română"
    ),
    "hu": (
        "a az és hogy nem is egy van volt csak de ez meg mint már még ha vagy azt ezt ki mi én te ő ti ők lehet kell "
        "lesz minden nagyon után előtt alatt között szerint ahol amikor aki ami így itt ott most jó nap év idő élet "
        "világ helló szia köszönöm igen ház magyar"
    ),
    "tr": (
        "ve bir bu da de için ile çok daha olarak gibi o ne kadar sonra en var olan ama her ben sen biz siz onlar şu "
        "mi değil yok olduğu ise ya veya ki kendi bana sana ona bizim onun nasıl neden nerede kim iyi gün yıl zaman "
        "hayat dünya merhaba selam teşekkür teşekkürler evet hayır lütfen günaydın türkçe"
    ),
    "vi": (
        "và của là có trong được cho không một với các những này đó khi đã sẽ đang cũng như để từ người ra vào lại về "
        "thì mà nhưng nếu hay hoặc rất nhiều tôi bạn anh chị em ông bà chúng ta họ nó mình gì nào sao đâu ai việc năm "
        "ngày thời gian cuộc sống thế giới xin chào cảm ơn vâng dạ tiếng việt nam câu trả lời"
    ),
    "id": (
        "yang dan di ini itu dengan untuk tidak dari dalam akan pada juga saya ke karena ada mereka kami kita anda "
        "bisa lebih telah atau oleh sudah seperti adalah sebagai saat dapat hanya dia ia tersebut banyak orang tahun "
        "hari waktu hidup dunia halo terima kasih ya selamat pagi rumah bahasa indonesia jawaban apa siapa mana "
        "bagaimana kapan"
    ),
    "sw": (
        "na ya wa kwa ni katika za la kuwa hii hiyo yake hilo lakini pia au kama watu mtu sana zaidi baada kabla hapa "
        "huko ndiyo hapana mimi wewe yeye sisi ninyi wao wangu wako wake wetu wenu nini nani wapi vipi lini kila wote "
        "yote mwaka siku wakati maisha dunia habari jambo asante karibu nyumba kiswahili cha vya hivyo ambayo ambao "
        "ili bila tu moja mbili"
    ),
    "tl": (
        "ang ng sa na at mga ay ito hindi may para si ni kay ako ikaw siya kami tayo kayo sila ko mo niya namin natin "
        "ninyi nila kung pero dahil din rin lang po opo oo wala mayroon isang kanyang aking iyong ano sino saan "
        "kailan bakit paano araw taon panahon buhay mundo kumusta salamat bahay tagalog filipino"
    ),
    "ca": (
        "el la els les de del i a en un una que no és per amb es al com més però o si aquest aquesta aquests són ser "
        "han hi ha molt també quan on què qui jo tu ell ella nosaltres seva seu dels món hola gràcies bon dia casa "
        "català"
    ),
    "ru": (
        "и в не на я быть он с что а по это она этот к но они мы весь который из у то за свой от со для о так же ты "
        "все как вы ещё её его их только был была было были есть если или уже когда где кто чтобы можно нет да до при "
        "вот мне меня тебе нас вас этого этой том там тут здесь очень после время год день жизнь мир привет "
        "здравствуйте спасибо пожалуйста хорошо дом русский ответ"
    ),
    "uk": (
        "і в не на я бути він з що а та це вона цей до але вони ми весь який із у за свій від для про так же ти все "
        "як ви ще її його їх тільки був була було були є якщо або вже коли де хто щоб можна ні при ось мені мене тобі "
        "нас вас цього цієї тому там тут дуже після час рік день життя світ привіт вітаю дякую ласка добре дім "
        "українська українською відповідь й"
    ),
    "bg": (
        "и в не на аз съм той с че а по това тя този към но те ние целия който от у за свой до се така ти всичко как "
        "вие още я го ги само беше бяха бъде е са ако или вече когато където кой да може няма има при ето ми мен теб "
        "нас вас тази там тук много след време година ден живот свят здравей здравейте благодаря моля добре къща "
        "български отговор ще си като"
    ),
    "sr": (
        "и у не на ја бити он са што а по то она овај ка али они ми сав који из за свој од до се тако ти све како ви "
        "још је га их само био била било били ако или већ када где ко да може нема има при ево мени мене теби нас вас "
        "ова там овде врло после време година дан живот свет здраво хвала молим добро кућа српски"
    ),
    "ar": (
        "في من على إلى أن هذا هذه التي الذي ما لا هو هي كان كانت عن مع كل بعد قبل بين أو ثم لم لن قد إن أنا أنت نحن "
        "هم ذلك تلك عند حيث حتى أي كما لكن غير يكون يمكن جدا اليوم عام يوم وقت حياة العالم مرحبا شكرا نعم السلام "
        "عليكم بيت العربية كيف متى أين لماذا يا أيضا"
    ),
    "fa": (
        "و در به از که این را با است برای آن یک خود تا می شد بر هم نیز یا هر شود کرد شده های اما دارد بود باید من تو "
        "او ما شما آنها چه کجا چرا چگونه کی خیلی همه هیچ سال روز زمان زندگی جهان دنیا سلام ممنون بله نه خانه فارسی "
        "کنید می‌شود می‌کند هستند دارند کردن"
    ),
    "ur": (
        "کے کی میں ہے اور سے کا کو ہیں نے پر یہ کہ اس وہ ایک بھی تھا تھی تھے نہیں ہو جو تو کر گیا گئی گئے کیا ان ہم "
        "آپ تم میرا تمہارا اپنے لیے ساتھ بعد پہلے ہوں ہوا ہوتا ہوئے رہا رہے رہی سال دن وقت زندگی دنیا سلام شکریہ جی "
        "ہاں گھر اردو بہت سب کچھ"
    ),
    "hi": (
        "के की में है और से का को हैं ने पर यह कि इस वह एक भी था थी थे नहीं हो जो तो कर गया गई गए क्या उन हम आप तुम "
        "मेरा तुम्हारा अपने लिए साथ बाद पहले हूँ हुआ होता हुए रहा रहे रही साल दिन समय जीवन दुनिया नमस्ते धन्यवाद जी "
        "हाँ घर हिंदी हिन्दी बहुत सब कुछ मैं ही इसके उनके"
    ),
    "mr": (
        "आणि आहे आहेत या हे ही हा तो ती ते मी तू आम्ही तुम्ही आपण मध्ये चा ची चे च्या साठी नाही होते होता होती पण "
        "किंवा एक काय कसे कुठे केव्हा का खूप सर्व काही नंतर आधी वर्ष दिवस वेळ जीवन जग नमस्कार धन्यवाद हो घर मराठी "
        "करण्यासाठी असे असतो असते त्याच्या तिच्या त्यांच्या म्हणून केले आला"
    ),
    "ne": (
        "छ र मा को का की लाई ले यो त्यो यस हो हुन् छन् थियो थिए म तिमी तपाईं हामी उनी उनले पनि तर वा एक एउटा के कसरी "
        "कहाँ किन धेरै सबै केही पछि अघि वर्ष दिन समय जीवन संसार नमस्ते धन्यवाद घर नेपाली गर्न गर्ने गरेको हुने भएको "
        "भने छैन हुन्छ गर्छ लागि साथ"
    ),
}
